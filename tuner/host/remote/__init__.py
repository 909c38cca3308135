"""What runs on the host: sent over SSH as one script (`tuner.host.bundle`), never installed.

Standard library only, Python 3.8 or later, Linux. Modules here import nothing but the standard library and each other.
"""
