"""The studio: a page in the browser that shows an energy, lets one touch it, and lets one watch it learn.

server.py     the page, its files and one websocket; it computes nothing and imports no torch
guard.py      who may ask: a token, the names of this machine, the page's own origin, a limit on bodies
wire.py       messages: a JSON header and arrays
pool.py       jobs, one at a time per model, each model in a process of its own
desk.py       the loop of such a process
plane.py      jobs on models of the plane: densities, chains, training on drawn data
images.py     jobs on models of images: samples, inpainting, interpolation, restoration, scores, long chains
runs.py       runs and models that ship, as the page and the report show them
downloads.py  results as files
recipes.py    the command and the Python lines that make a result again
report.py     one run as a single HTML file
static/       the page: HTML, CSS and ES modules as they are, without a build step
"""
