"""Pages: HTML with figures inside, and the files beside it.

html            what all pages share
files           writing a page, its figures and its tables
runs            one run, or several side by side
study           a comparison or a sweep
advice          `dystop advise`
gap             `dystop gap`
"""
