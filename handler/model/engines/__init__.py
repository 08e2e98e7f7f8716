"""The engines that can run a model. Only eager is always there; the others are optional.

`engine.py` holds their interface, `choose.py` picks one and checks its predictions, and each other
module is one engine.
"""
