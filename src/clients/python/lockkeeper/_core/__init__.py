"""What a client does, apart from how it waits: shared by the client with threads and the one with asyncio.

The functions that wait are coroutines, and wait only through the `io` that they are given (`lockkeeper._io`). With asyncio that suspends
them; with threads it blocks, and the coroutine is run to its end in one go. So there is one implementation of each rule.
"""
