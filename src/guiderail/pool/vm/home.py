"""The home folder of a fresh desktop and the programs that make up its session.

Guarantees: the same home, byte for byte, at every reset; nothing in it blinks, animates or shows the time, so that a
desktop at rest is equal pixels; text opens in the text editor, pictures in the viewer, folders in the file manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guiderail.pool.vm.sandbox import HOME, RUNTIME

FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos")
BUS = f"{RUNTIME}/bus"
ICONS = "Adwaita"

GTK3 = f"""[Settings]
gtk-theme-name=Adwaita
gtk-icon-theme-name={ICONS}
gtk-font-name=DejaVu Sans 10
gtk-cursor-blink=false
gtk-enable-animations=false
gtk-xft-antialias=1
gtk-xft-hinting=1
gtk-xft-hintstyle=hintslight
gtk-xft-rgba=none
gtk-recent-files-enabled=false
"""
GTK2 = f"""gtk-theme-name="Adwaita"
gtk-icon-theme-name="{ICONS}"
gtk-font-name="DejaVu Sans 10"
gtk-cursor-blink=0
gtk-recent-files-max-age=0
"""
FOCUS = '<action name="Focus"/><action name="Raise"/>'
OPENBOX = f"""<?xml version="1.0" encoding="UTF-8"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
<resistance><strength>0</strength><screen_edge_strength>0</screen_edge_strength></resistance>
<focus><focusNew>yes</focusNew><followMouse>no</followMouse><focusLast>yes</focusLast></focus>
<placement><policy>Smart</policy><center>yes</center><monitor>Primary</monitor></placement>
<theme><name>Clearlooks</name><titleLayout>NLIMC</titleLayout><animateIconify>no</animateIconify>
<font place="ActiveWindow"><name>DejaVu Sans</name><size>9</size><weight>Bold</weight></font>
<font place="InactiveWindow"><name>DejaVu Sans</name><size>9</size><weight>Bold</weight></font>
</theme>
<desktops><number>1</number><popupTime>0</popupTime></desktops>
<resize><drawContents>yes</drawContents><popupShow>Never</popupShow></resize>
<keyboard>
<keybind key="A-F4"><action name="Close"/></keybind>
<keybind key="A-Tab"><action name="NextWindow"><dialog>none</dialog>
<finalactions>{FOCUS}</finalactions></action></keybind>
<keybind key="W-d"><action name="ToggleShowDesktop"/></keybind>
<keybind key="W-e"><action name="Execute"><command>pcmanfm</command></action></keybind>
<keybind key="C-A-t"><action name="Execute"><command>x-terminal-emulator</command></action></keybind>
</keyboard>
<mouse><dragThreshold>4</dragThreshold><doubleClickTime>400</doubleClickTime><screenEdgeWarpTime>0</screenEdgeWarpTime>
<context name="Titlebar">
<mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
<mousebind button="Left" action="DoubleClick"><action name="ToggleMaximize"/></mousebind>
</context>
<context name="Titlebar Top Right Bottom Left TLCorner TRCorner BRCorner BLCorner">
<mousebind button="Left" action="Press">{FOCUS}</mousebind>
</context>
{
    "".join(
        f'<context name="{edge}"><mousebind button="Left" action="Drag"><action name="Resize">'
        f"<edge>{edge.lower()}</edge>"
        "</action></mousebind></context>"
        for edge in ("Top", "Left", "Right", "Bottom")
    )
}
<context name="TRCorner BRCorner TLCorner BLCorner">
<mousebind button="Left" action="Drag"><action name="Resize"/></mousebind></context>
<context name="Client">
<mousebind button="Left" action="Press">{FOCUS}</mousebind>
<mousebind button="Middle" action="Press">{FOCUS}</mousebind>
<mousebind button="Right" action="Press">{FOCUS}</mousebind>
</context>
<context name="Close"><mousebind button="Left" action="Click"><action name="Close"/></mousebind></context>
<context name="Iconify"><mousebind button="Left" action="Click"><action name="Iconify"/></mousebind></context>
<context name="Maximize"><mousebind button="Left" action="Click"><action name="ToggleMaximize"/></mousebind></context>
</mouse>
</openbox_config>
"""
TINT2 = """rounded = 0
border_width = 0
background_color = #22262b 100
border_color = #22262b 100
rounded = 2
border_width = 0
background_color = #3a424c 100
border_color = #3a424c 100
rounded = 2
border_width = 0
background_color = #5a6673 100
border_color = #5a6673 100
panel_items = LT
panel_size = 100% 36
panel_margin = 0 0
panel_padding = 4 0 4
panel_background_id = 1
panel_position = bottom center horizontal
panel_layer = top
panel_dock = 0
panel_window_name = panel
wm_menu = 0
disable_transparency = 1
strut_policy = follow_size
autohide = 0
font_shadow = 0
mouse_effects = 0
launcher_padding = 4 4 6
launcher_background_id = 0
launcher_icon_background_id = 0
launcher_icon_size = 26
launcher_icon_theme = {icons}
launcher_icon_theme_override = 1
startup_notifications = 0
launcher_tooltip = 0
{launchers}
taskbar_mode = single_desktop
taskbar_padding = 4 3 4
taskbar_background_id = 0
taskbar_active_background_id = 0
taskbar_name = 0
taskbar_hide_inactive_tasks = 0
taskbar_always_show_all_desktop_tasks = 0
taskbar_sort_order = none
task_align = left
task_icon = 1
task_text = 1
task_centered = 0
task_maximum_size = 180 28
task_padding = 6 3 6
task_font = DejaVu Sans 9
task_tooltip = 0
task_font_color = #ffffff 100
task_background_id = 2
task_active_background_id = 3
urgent_nb_of_blink = 0
mouse_left = toggle_iconify
mouse_middle = none
mouse_right = none
tooltip_show_timeout = 3600
"""
LAUNCHERS = ("pcmanfm", "mousepad", "org.xfce.mousepad", "xfce4-terminal", "galculator", "org.xfce.ristretto")
"""Not LibreOffice's: the screen is the same on machines with and without it."""
OPENXML = "application/vnd.openxmlformats-officedocument"
OPENDOCUMENT = "application/vnd.oasis.opendocument"
OFFICE_TYPES = {
    ".xlsx": (f"{OPENXML}.spreadsheetml.sheet", "libreoffice-calc.desktop"),
    ".ods": (f"{OPENDOCUMENT}.spreadsheet", "libreoffice-calc.desktop"),
    ".docx": (f"{OPENXML}.wordprocessingml.document", "libreoffice-writer.desktop"),
    ".odt": (f"{OPENDOCUMENT}.text", "libreoffice-writer.desktop"),
}
"""End of a name -> type and program; Python's own table of types differs between machines."""
MIME = {
    "text/plain": ("org.xfce.mousepad.desktop", "mousepad.desktop"),
    "inode/directory": ("pcmanfm.desktop",),
    **{f"image/{k}": ("org.xfce.ristretto.desktop",) for k in ("png", "jpeg", "gif", "bmp")},
    **{kind: (app,) for kind, app in OFFICE_TYPES.values()},
}
LIBREOFFICE = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema"
 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
{items}
</oor:items>
"""
LIBREOFFICE_SETTINGS = (
    ("org.openoffice.Office.Common/Misc", "ShowTipOfTheDay", "false"),
    ("org.openoffice.Office.Common/Misc", "FirstRun", "false"),
    ("org.openoffice.Setup/Product", "ooSetupLastVersion", "99.9"),
    ("org.openoffice.Office.Common/Misc", "CrashReport", "false"),
    ("org.openoffice.Setup/Office", "OfficeRestartInProgress", "false"),
    ("org.openoffice.Office.Recovery/RecoveryInfo", "Enabled", "false"),
    ("org.openoffice.Office.Common/Save/Document", "WarnAlienFormat", "false"),
)


def environment(display: str) -> dict[str, str]:
    """What programs find in their environment."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/games",
        "HOME": HOME,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "DISPLAY": display,
        "XDG_RUNTIME_DIR": RUNTIME,
        "XDG_SESSION_TYPE": "x11",
        "XDG_CURRENT_DESKTOP": "guiderail",
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={BUS}",
        "GTK_MODULES": "gail:atk-bridge",
        "GTK_IM_MODULE": "gtk-im-context-simple",
        "GTK_OVERLAY_SCROLLING": "0",
        "GDK_CORE_DEVICE_EVENTS": "0",
        "SAL_USE_VCLPLUGIN": "gtk3",
        "NO_AT_BRIDGE": "0",
        "QT_ACCESSIBILITY": "1",
        "VTE_CJK_WIDTH": "1",
    }


def layout(applications: Mapping[str, str]) -> dict[str, Any]:
    """The order that `init.py` lays a home out by. `applications`: desktop files that are there, by name."""
    launchers = "\n".join(f"launcher_item_app = {applications[n]}" for n in LAUNCHERS if n in applications)
    mime = "".join(
        f"{kind}={app}\n" for kind, apps in MIME.items() for app in apps if app.removesuffix(".desktop") in applications
    )
    dirs = "".join(f'XDG_{n.upper()}_DIR="$HOME/{n}"\n' for n in FOLDERS if n != "Downloads")
    dirs += 'XDG_DOWNLOAD_DIR="$HOME/Downloads"\n'
    items = "\n".join(
        f'<item oor:path="/{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>'
        for path, name, value in LIBREOFFICE_SETTINGS
    )
    config = f"{HOME}/.config"
    files = {
        f"{HOME}/.gtkrc-2.0": GTK2,
        f"{config}/gtk-3.0/settings.ini": GTK3,
        f"{config}/openbox/rc.xml": OPENBOX,
        f"{config}/tint2/tint2rc": TINT2.format(icons=ICONS, launchers=launchers),
        f"{config}/mimeapps.list": f"[Default Applications]\n{mime}",
        f"{config}/user-dirs.dirs": dirs,
        f"{config}/user-dirs.locale": "C",
        f"{config}/pcmanfm/default/pcmanfm.conf": "[config]\nbm_open_method=0\n[volume]\nmount_on_startup=0\n"
        "mount_removable=0\nautorun=0\n[ui]\nalways_show_tabs=0\nwin_width=720\nwin_height=480\nview_mode=list\n",
        f"{config}/pcmanfm/default/desktop-items-0.conf": "[*]\nwallpaper_mode=color\ndesktop_bg=#3b6a8f\n"
        "desktop_fg=#ffffff\ndesktop_shadow=#000000\ndesktop_font=DejaVu Sans 10\nshow_wm_menu=0\nshow_documents=0\n"
        "show_trash=0\nshow_mounts=0\n",
        f"{config}/libfm/libfm.conf": "[config]\nsingle_click=0\nuse_trash=0\nconfirm_del=1\nquick_exec=1\n"
        "thumbnail_local=0\n[ui]\nbig_icon_size=48\nsmall_icon_size=24\n[places]\nplaces_trash=0\n"
        "places_applications=0\nplaces_computer=0\nplaces_network=0\n",
        f"{config}/xfce4/terminal/terminalrc": "[Configuration]\nMiscCursorBlinks=FALSE\nMiscAlwaysShowTabs=FALSE\n"
        "MiscShowUnsafePasteDialog=FALSE\nMiscConfirmClose=FALSE\nFontName=DejaVu Sans Mono 11\nMiscBell=FALSE\n",
        f"{config}/libreoffice/4/user/registrymodifications.xcu": LIBREOFFICE.format(items=items),
        f"{HOME}/.bashrc": "PS1='user@desktop:\\w\\$ '\nalias ls='ls --color=auto'\nHISTFILE=~/.bash_history\n",
        f"{HOME}/.profile": "",
    }
    folders = {HOME: 0o755, RUNTIME: 0o700, "/tmp": 0o1777, "/var/tmp": 0o1777, "/dev/shm": 0o1777}
    folders |= {f"{HOME}/{n}": 0o755 for n in FOLDERS}
    folders |= {path.rpartition("/")[0]: 0o755 for path in files}
    return {
        "empty": [HOME, RUNTIME, "/tmp", "/var/tmp", "/dev/shm"],
        "keep": ["/tmp/.X11-unix"],
        "folders": folders,
        "files": files,
    }


MANAGER = ("openbox", "--sm-disable")
"""The window manager; it has to be there before the rest (see `Windows.managed`)."""
SESSION: tuple[tuple[str, ...], ...] = (("pcmanfm", "--desktop"), ("tint2",))
"""The other programs of the session."""
