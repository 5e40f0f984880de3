"""The compiled core: slots and commits (`seqlock`), the binding of Aeron (`aeron`)."""
