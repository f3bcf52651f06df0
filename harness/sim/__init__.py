"""A simulated SGLang server: step-time tables, a discrete-event engine and SGLang's own HTTP API.

Cost depends on width, progress on acceptance; with zero drafts the engine is the baseline. Nothing that comes from
here is a measurement: records made from it carry source "simulated".
"""
