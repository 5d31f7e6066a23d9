"""Matrices on disk, larger than memory: a chunked store, what it is written from, and products that stream it.

=============================  ==================================================================
:mod:`cvrarray.store.sources`  ``to_store``: matrices, dask arrays, files and entries in any order
:mod:`cvrarray.store.spool`    entries in any order -> panels of rows, with little memory
:mod:`cvrarray.store.writer`   ``Writer``: panels in, one after the other or each on its own
:mod:`cvrarray.store.lock`     one writer at a time
:mod:`cvrarray.store.layout`   what lies on the disk
:mod:`cvrarray.store.stream`   ``Stored``: products that stream the panels to the device
:mod:`cvrarray.store.steps`    functions that panels go through when they are read
=============================  ==================================================================
"""
