"""The stand-in SGLang: what ``python3 -m sglang.launch_server`` is on a simulated host.

    launcher ──requests──▶ scheduler TP0 ──token ids──▶ detokenizer ──text──▶ launcher ──HTTP──▶ client
                             └─ ring ─▶ scheduler TP1 … TPn ─┘

Every process is a real one, so that stopping or killing any of them does what it does to SGLang. Its words are those
of SGLang 0.5.17, whose log lines and answers were recorded; what differs by version is gated in `arguments`.
"""
