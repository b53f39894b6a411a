"""The engines that `make bench` compares, one a file, each run as a process of its own in its own Python.

This folder is put on the path of foreign environments, where nothing else of Orrery can be imported; so its files
import the standard library, each other, and the one engine that they are about.
"""
