"""The start page of the examples, and their stylesheet."""

from __future__ import annotations

from flask import Blueprint, render_template

start = Blueprint(
    "examples", __name__, template_folder="templates", static_folder="static", static_url_path="/examples"
)


@start.get("/")
def index() -> str:
    """Say what there is to see. An ordinary template, in the layout of the streamed ones."""
    return render_template("start.html")
