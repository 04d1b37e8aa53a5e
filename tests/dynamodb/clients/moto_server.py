"""A moto server on a port of its own, until its input ends: it says where it listens."""

import sys
import threading

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

# One request at a time: between threads, a condition of moto's and the write after it are two steps, and two callers acquire one lock.
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(f"http://127.0.0.1:{server.port}", flush=True)
sys.stdin.read()
