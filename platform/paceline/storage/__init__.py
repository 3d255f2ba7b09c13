"""Runs in an object store: addresses, copies, and who may write. Imports pyarrow only when a store is opened."""
