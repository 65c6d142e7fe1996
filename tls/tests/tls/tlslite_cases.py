"""Handshakes that break one rule each, made with tlslite-ng (see tlslite.rs). usage: tlslite_cases.py PORT [CASE]
Prints a line for each: NAME, a tab, and the alert that came back, `end` for a close without one, or `served`."""
import copy, socket, sys

from tlslite.api import HandshakeSettings, TLSConnection
from tlslite.constants import AlertDescription
from tlslite.errors import TLSAbruptCloseError, TLSError, TLSRemoteAlert
from tlslite.extensions import SupportedGroupsExtension, TLSExtension
from tlslite.messages import ApplicationData, ChangeCipherSpec, ClientHello, ClientKeyExchange, Finished, Message

TLS12, TLS13 = (3, 3), (3, 4)
ALERT, HANDSHAKE = 21, 22


class Broken(TLSConnection):
    """Sends what `change` makes of each message."""
    change = None

    def _sendMsg(self, msg, *args, **named):
        for one in self.change(msg) if self.change else [msg]: yield from super()._sendMsg(one, *args, **named)


def instead(kind, make):
    return lambda msg: make(msg) if isinstance(msg, kind) else [msg]


def hello(change):
    def make(msg):
        change(msg)
        return [msg]
    return instead(ClientHello, make)


def raw(kind, change):
    """The same for a message's bytes."""
    def make(msg):
        body = bytearray(msg.write())
        change(body)
        return [Message(HANDSHAKE, body)]
    return instead(kind, make)


def flip_last(body): body[-1] ^= 1


def longer(body):
    """A byte behind the message's end, counted in its length."""
    body.append(0)
    body[1:4] = (len(body) - 4).to_bytes(3, "big")


def extensions(change):
    def make(msg): msg.extensions = change(msg.extensions)
    return hello(make)


def without(name): return extensions(lambda all: [e for e in all if type(e).__name__ != name])


def share(change):
    """Another public key in each key share."""
    def make(msg):
        for e in msg.extensions:
            if type(e).__name__ == "ClientKeyShareExtension":
                for entry in e.client_shares: entry.key_exchange = change(entry.key_exchange)
    return hello(make)


def key_exchange(change):
    def make(msg):
        msg.ecdh_Yc = change(msg.ecdh_Yc)
        return [msg]
    return instead(ClientKeyExchange, make)


def field(name, value):
    return hello(lambda msg: setattr(msg, name, value))


CASES = {
    # The hello, in the version that is asked for.
    "two extensions of a kind": (TLS13, extensions(lambda all: all + [copy.copy(all[-1])] if type(all[-1]).__name__ != "PreSharedKeyExtension" else all[:1] + all)),
    "an extension that is cut": (TLS13, extensions(lambda all: [TLSExtension(extType=10).create(bytearray(b"\0\x08\0"))] + [e for e in all if e.extType != 10])),
    "no cipher suite in common": (TLS13, field("cipher_suites", [0x1304])),
    "no cipher suite at all": (TLS12, field("cipher_suites", [])),
    "no group in common": (TLS13, extensions(lambda all: [SupportedGroupsExtension().create([0x0100]) if e.extType == 10 else e for e in all])),
    "no key share": (TLS13, without("ClientKeyShareExtension")),
    "no compression method": (TLS12, field("compression_methods", [])),
    "a compression method that is none": (TLS13, field("compression_methods", [1])),
    "a session id of 33 bytes": (TLS12, field("session_id", bytearray(33))),
    "a byte behind the hello": (TLS13, raw(ClientHello, longer)),
    "TLS 1.1": (TLS12, field("client_version", (3, 2))),
    "a fallback from a version that is there": (TLS12, hello(lambda msg: msg.cipher_suites.append(0x5600))),
    # Keys.
    "a key share that is too short": (TLS13, share(lambda key: key[:-1])),
    "a key share of a small order": (TLS13, share(lambda key: bytearray(len(key)))),
    "a public key of a small order": (TLS12, key_exchange(lambda key: bytearray(len(key)))),
    "an empty public key": (TLS12, key_exchange(lambda key: bytearray())),
    # The order of things.
    "a second hello": (TLS12, instead(ClientKeyExchange, lambda msg: [Message(HANDSHAKE, bytearray(b"\x01\0\0\0")), msg])),
    "data before the key exchange": (TLS12, instead(ClientKeyExchange, lambda msg: [ApplicationData().create(bytearray(b"early")), msg])),
    "new keys before the key exchange": (TLS12, instead(ClientKeyExchange, lambda msg: [ChangeCipherSpec().create(), msg])),
    "no ChangeCipherSpec": (TLS12, instead(ChangeCipherSpec, lambda msg: [])),
    "a ChangeCipherSpec of two bytes": (TLS12, instead(ChangeCipherSpec, lambda msg: [Message(20, bytearray(b"\1\1"))])),
    "a ChangeCipherSpec that says 2": (TLS13, instead(ChangeCipherSpec, lambda msg: [Message(20, bytearray(b"\2"))])),
    "an empty message of an unknown kind": (TLS13, instead(Finished, lambda msg: [Message(HANDSHAKE, bytearray(b"\x63\0\0\0")), msg])),
    "a certificate that nobody asked for": (TLS13, instead(Finished, lambda msg: [Message(HANDSHAKE, bytearray(b"\x0b\0\0\4\0\0\0\0")), msg])),
    "data in place of the Finished": (TLS13, instead(Finished, lambda msg: [ApplicationData().create(bytearray(b"early"))])),
    # The Finished.
    "a wrong Finished, 1.2": (TLS12, raw(Finished, flip_last)),
    "a wrong Finished, 1.3": (TLS13, raw(Finished, flip_last)),
    "a Finished that is too long": (TLS13, raw(Finished, longer)),
    # What must not disturb.
    "control, 1.2": (TLS12, None),
    "control, 1.3": (TLS13, None),
    "control: a hello in pieces": (TLS13, instead(ClientHello, lambda msg: [Message(HANDSHAKE, msg.write()[i:i + 7]) for i in range(0, len(msg.write()), 7)])),
    "control: a hello of the future": (TLS12, field("client_version", (254, 253))),
    "control: an unknown extension": (TLS13, extensions(lambda all: [TLSExtension(extType=0xfafa).create(bytearray(b"?"))] + all)),
}


def attempt(port, version, change):
    settings = HandshakeSettings()
    settings.minVersion, settings.maxVersion = TLS12, version
    with socket.create_connection(("127.0.0.1", port), 30) as s:
        client = Broken(s)
        client.change = change
        try:
            client.handshakeClientCert(settings=settings, serverName="localhost")
            client.write(b"GET / HTTP/1.1\r\n\r\n")
            got = b""
            while not got.endswith(b"tls-ok"): got += client.read(max=1000, min=1)
            return "served"
        except TLSRemoteAlert as alert: return AlertDescription.toStr(alert.description)
        except (TLSAbruptCloseError, ConnectionError): return "end"
        except TLSError as error: return f"{type(error).__name__}: {error}"


for name, (version, change) in CASES.items():
    if name in sys.argv[2:] or len(sys.argv) == 2: print(f"{name}\t{attempt(int(sys.argv[1]), version, change)}", flush=True)
