"""The load: fresh prompts, streams, windows, and what they say.

prompts ── client ── stream ── formats        what is sent; bytes with their times; what the events say
              └───── windows ── metrics       is the window good; its numbers; a launch's numbers
"""
