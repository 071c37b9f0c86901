from springwell.cli import main

main()
