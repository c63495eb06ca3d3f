"""Refits of the catalog, cross-validation, the validation page; not part of the wheel."""
