"""The demo: a chat, four agents and sixteen streams that never rest, as a user of Headrace writes such a page.

create_app(blueprints=[demo])
"""

from .routes import demo

__all__ = ["demo"]
