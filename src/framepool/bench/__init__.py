"""framepool and its peers, side by side in one run (`framepool bench`).

What is measured is what a user has: one-way latency from the publish call in one process to a usable array in another,
and frames delivered a second. Only ratios mean anything on a shared machine, so every cell is measured in rounds in
which everybody has a turn, beside the machine's own limit for that cell.
"""
