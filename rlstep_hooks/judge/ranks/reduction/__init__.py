"""The gradient over several processes: what each recorded of its part is joined, and compared with the documented combination.

For an element of a parameter, with W ranks and A backward passes of each in an update,

    reduced = 1/W * (sum over ranks and passes of the local gradient)

to within (2 + W * A) roundings of the coarsest dtype on the way, each of the size of all that was added: parts cancel, so the result
says nothing of how large its error may be. Nothing was sent for it while training: records are joined afterwards.
"""
