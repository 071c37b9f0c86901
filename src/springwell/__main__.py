from springwell.app.cli import main

main()
