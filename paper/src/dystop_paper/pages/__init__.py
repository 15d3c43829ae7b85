"""Pages: HTML with figures inside, and the files beside it.

verdict         the claims of the paper
readings        a search over readings
reading_tables  the tables of that search
atlas           which mechanism wins in which network
"""
