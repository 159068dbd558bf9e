"""OSWorld's vocabulary: apps, metrics and getters that a task file may name.

Guarantees: `FUNCS` and `GETTERS` hold every name that OSWorld's tasks use and every one we implement; whether we do is
`judges.registry`'s affair. A name outside is a typing error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

APPS = frozenset(
    """chrome Chrome browser gimp os OS ubuntu terminal vlc ubuntu_media_player vscode vs_code thunderbird libreoffice
    libreoffice_calc libreoffice_impress libreoffice_writer calc writer Writer pdf image picard excel word ppt
    mousepad pcmanfm galculator xfce4-terminal ristretto""".split()
) | {"libreoffice calc"}

FUNCS = frozenset(
    """
    infeasible
    check_accessibility_tree check_auto_saving_time check_brightness_decrease_and_structure_sim check_config_status
    check_contrast_increase_and_structure_sim check_csv check_direct_json_object check_enabled_experiments
    check_file_exists_and_structure_sim check_font_size check_global_key_play_pause check_gnome_favorite_apps
    check_green_background check_highlighted_words check_history_deleted check_image_file_size check_image_mirror
    check_image_size check_image_stretch_and_center check_include_exclude check_italic_font_size_14 check_json
    check_json_keybindings check_json_settings check_left_panel check_line_number check_list check_moved_jpgs
    check_mp3_meta check_one_instance_when_started_from_file check_page_number_colors
    check_palette_and_structure_sim check_pdf_pages check_presenter_console_disable check_python_file_by_test_suite
    check_qt_bgcone check_qt_max_volume check_qt_minimal_view check_qt_slider_colours
    check_saturation_increase_and_structure_sim check_slide_orientation_Portrait check_structure_sim
    check_structure_sim_resized check_tabstops check_textbox_on_leftside check_thunderbird_filter
    check_thunderbird_folder check_thunderbird_prefs check_transition check_triangle_position compare_archive
    compare_audios compare_conference_city_in_order compare_config compare_csv compare_docx_files
    compare_docx_files_and_ignore_new_lines compare_docx_images compare_docx_tables compare_epub compare_font_names
    compare_htmls compare_image_list compare_image_text compare_images compare_line_spacing compare_pdf_images
    compare_pdfs compare_pptx_files compare_python_pure_text compare_references compare_result_files
    compare_subscript_contains compare_table compare_text_file compare_unique_train_records compare_videos
    compare_zip_files contains_page_break diff_text_file evaluate_colored_words_in_tables
    evaluate_presentation_fill_to_rgb_distance evaluate_strike_through_last_paragraph exact_match file_contains
    find_default_font fuzzy_match fuzzy_place_math has_page_numbers_in_footers is_added_to_steam_cart is_cookie_deleted
    is_expected_active_tab is_expected_active_tab_approximate is_expected_bookmarks is_expected_installed_extensions
    is_expected_search_query is_expected_tabs is_expected_url_pattern_match is_extension_installed
    is_first_line_centered is_in_list is_in_vm_clickboard is_shortcut_on_desktop is_utc_0 is_vlc_fullscreen
    is_vlc_playing is_vlc_recordings_folder literal_match match_in_list run_sqlite3
    """.split()
)

NEEDS_EXPECTED = frozenset(
    """compare_table compare_pptx_files check_direct_json_object check_include_exclude exact_match compare_docx_files
    compare_pdfs check_list compare_images check_json_settings compare_text_file diff_text_file compare_csv check_json
    file_contains compare_docx_tables check_image_size literal_match match_in_list is_in_list fuzzy_match""".split()
) - {"compare_table"}  # compare_table may hold all it needs in its rules

GETTERS: dict[str, tuple[str, ...]] = {
    "rule": ("rules",),
    "rule_relativeTime": ("rules",),
    "vm_file": ("path", "dest"),
    "cloud_file": ("path", "dest"),
    "cache_file": ("path",),
    "setup_file": ("path",),
    "vm_command_line": ("command",),
    "vm_command_error": ("command",),
    "vm_terminal_output": (),
    "vm_screen_size": (),
    "vm_window_size": ("app_class_name",),
    "vm_wallpaper": ("dest",),
    "list_directory": ("path",),
    "accessibility_tree": (),
    "content_from_vm_file": ("path", "file_type", "file_content"),
    "vlc_config": ("dest",),
    "vlc_playing_info": ("dest",),
    "default_video_player": (),
    "vscode_config": ("path", "dest"),
    "gimp_config_file": ("file_name", "dest"),
    "audio_in_slide": ("ppt_file_path", "slide_index", "dest"),
    "background_image_in_slide": ("ppt_file_path", "slide_index", "dest"),
    "bookmarks": (),
    "profile_name": (),
    "enable_do_not_track": (),
    "enable_safe_browsing": (),
    "new_startup_page": (),
    "default_search_engine": (),
    "chrome_font_size": (),
    "data_delete_automacally": (),
    "enabled_experiments": (),
    "shortcuts_on_desktop": (),
    "find_unpacked_extension_path": (),
    "find_installed_extension_name": (),
    "history": ("dest",),
    "cookie_data": ("dest",),
    "active_url_from_accessTree": (),
    "active_tab_info": (),
    "active_tab_html_parse": (),
    "active_tab_url_parse": ("parse_keys",),
    "url_path_parse": ("parse_keys",),
    "url_dashPart": (),
    "open_tabs_info": (),
    "page_info": ("url",),
    "pdf_from_url": ("path", "dest"),
    "info_from_website": ("url", "infos"),
    "gotoRecreationPage_and_get_html_content": (),
    "googledrive_file": ("settings_file", "dest"),
}
"""Getter type -> fields it cannot do without."""


def nearest(name: object, known: Iterable[str]) -> str:
    """One sentence that offers the names most like `name`."""
    near = difflib.get_close_matches(str(name), list(known), n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(near)}?" if near else "Look it up in docs/osworld.md."
