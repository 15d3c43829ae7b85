"""A small TCP proxy on loopback that can stall or break its connections."""

import contextlib
import socket
import threading


class Proxy:
    def __init__(self, target: str, source: str = "127.0.0.1") -> None:
        """Forward to `target` from the address `source`."""
        host, port = target.rsplit(":", 1)
        self._target, self._source = (host, int(port)), (source, 0)
        self._flows = threading.Event()
        self._flows.set()
        self._refuses = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._start(self._accept)

    def freeze(self) -> None:
        """Forward nothing and leave all connections open, like a pulled plug."""
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        """End all connections and refuse new ones."""
        self._refuses = True
        self._shut()

    def heal(self) -> None:
        self._refuses = False

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._flows.set()
        for thread in self._threads:
            thread.join(5)

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _shut(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets = []

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                self.connections += 1
                if self._refuses:
                    here.close()
                    continue
                there = socket.create_connection(self._target, source_address=self._source)
                self._sockets += [here, there]
                self._start(self._pump, here, there)
                self._start(self._pump, there, here)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
