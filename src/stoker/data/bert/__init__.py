"""Data for BERT: sentence pairs, their masks, and HDF5 files of them."""
