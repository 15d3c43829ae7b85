"""Data of others become data sets: folders of images, tables, and objects of other libraries.

importer   `import_data` and `save_data`
images     a folder of images
features   features and targets of a table
objects    torch data sets and data sets of Hugging Face
"""

from dystop.data.importing.importer import check_out, import_data, save_data

__all__ = ["check_out", "import_data", "save_data"]
