"""Ways of keeping members in step: ring and synchronous parameter servers behind one Protocol."""

from ringleader.sync.coded import Coding
from ringleader.sync.exchange import Exchange
from ringleader.sync.opening import open_exchange

__all__ = ["Coding", "Exchange", "open_exchange"]
