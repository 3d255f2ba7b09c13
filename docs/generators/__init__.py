"""The generated pages of the reference: one module for each, with a function `page`."""
