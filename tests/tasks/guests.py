"""A guest in memory, for judges and setup."""

from guiderail.tasks.guest import Executed, GuestError, GuestFileMissing


class FakeGuest:
    """Implements `tasks.guest.Guest`: files in a dict, commands answered from a dict, all calls kept."""

    def __init__(self, files=None, outputs=None):
        self.files = dict(files or {})
        self.outputs = dict(outputs or {})
        self.calls = []

    async def execute(self, command, shell=False):
        self.calls.append(("execute", command))
        return self.outputs.get(str(command), Executed(0, ""))

    async def launch(self, command, shell=False):
        self.calls.append(("launch", command))

    async def upload(self, path, data):
        self.calls.append(("upload", path))
        self.files[path] = data

    async def read(self, path):
        if path not in self.files:
            raise GuestFileMissing(path)
        return self.files[path]

    async def open(self, path):
        self.calls.append(("open", path))

    async def window(self, verb, name, strict=False, by_class=False):
        self.calls.append((verb, name))
        if name == "missing":
            raise GuestError("no window 'missing'")

    async def wallpaper(self, path=None):
        return b""

    async def tree(self, path):
        names = sorted({p[len(path) + 1 :].split("/")[0] for p in self.files if p.startswith(path + "/")})
        return (
            {"type": "directory", "name": path, "children": [{"type": "file", "name": n} for n in names]}
            if names
            else None
        )

    async def accessibility(self):
        return "<desktop-frame/>"

    async def terminal(self):
        return ""

    async def screen_size(self):
        return {"width": 640, "height": 480}

    async def window_size(self, app_class):
        return None
