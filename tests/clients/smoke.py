"""The Python client's smoke (`python.rs`): acquires, loses its lock to an operator, acquires again, releases."""

import lockkeeper

with lockkeeper.connect() as client:
    try:
        with client.lock("jobs/nightly", wait=30, data=b"from Python") as lock:
            print("held by token", lock.token, flush=True)
            # Beside renewals, the loss is told at once; this is the bound of the test.
            lost = client.lock("jobs/nightly", wait=60)
            with client.watch("jobs/nightly") as watch:
                for _ in watch:
                    lock.raise_if_lost()
    except lockkeeper.Lost as error:
        print("lost:", error, flush=True)
    with lost as again:
        if again.token > lock.token:
            print("held again by a higher token", flush=True)
