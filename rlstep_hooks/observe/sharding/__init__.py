"""How a model's parameters lie on the ranks of a run: whole on each (DDP, ZeRO-0), or in parts (FSDP1, FSDP2, ZeRO-1 to 3).

One module for each way; all give `ParameterPlaces`. Nothing here calls a collective, gathers, or waits for a device.
"""
