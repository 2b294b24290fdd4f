"""Traffic that is replayed: a profile makes a trace, a trace is sent in open loop, its results make a report.

Reads in the order profile, arrivals, generate -> trace -> pictures, send, drive -> results -> score -> page, tables.
"""
