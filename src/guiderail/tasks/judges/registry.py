"""Which of OSWorld's metrics, getters and setup steps are implemented here, and where.

Guarantees: a metric is named by module and function and imported in the judge's child only; `missing` says honestly
what of a task is not covered.
"""

from __future__ import annotations

from guiderail.tasks.judges.getters import FETCHERS
from guiderail.tasks.osworld import OsworldTask

_MODULES: dict[str, str] = {
    "text": """check_include_exclude exact_match literal_match fuzzy_match match_in_list is_in_list
        compare_text_file diff_text_file file_contains check_list check_line_number compare_csv check_csv
        is_in_vm_clickboard compare_python_pure_text compare_result_files is_utc_0 check_moved_jpgs
        check_gnome_favorite_apps is_extension_installed compare_config check_direct_json_object""",
    "settings": """check_json check_json_settings check_json_keybindings check_config_status check_thunderbird_prefs
        check_thunderbird_filter find_default_font check_auto_saving_time check_presenter_console_disable
        check_qt_bgcone check_qt_max_volume check_qt_minimal_view check_qt_slider_colours
        check_global_key_play_pause check_one_instance_when_started_from_file is_vlc_recordings_folder
        is_vlc_playing is_vlc_fullscreen run_sqlite3""",
    "chrome": """is_expected_bookmarks check_enabled_experiments check_font_size is_expected_installed_extensions
        check_history_deleted is_cookie_deleted""",
    "tables": "compare_table compare_conference_city_in_order",
    "docs": """compare_docx_files compare_docx_files_and_ignore_new_lines compare_docx_tables compare_docx_images
        compare_unique_train_records""",
    "doc_looks": """compare_line_spacing compare_font_names compare_subscript_contains has_page_numbers_in_footers
        is_first_line_centered contains_page_break check_tabstops evaluate_strike_through_last_paragraph
        evaluate_colored_words_in_tables check_italic_font_size_14 check_highlighted_words""",
    "slides": "compare_pptx_files check_slide_orientation_Portrait check_transition check_page_number_colors",
    "pdf": "compare_pdfs check_pdf_pages",
    "images": """compare_images compare_image_list check_structure_sim check_structure_sim_resized
        check_brightness_decrease_and_structure_sim check_contrast_increase_and_structure_sim
        check_saturation_increase_and_structure_sim check_image_size check_image_file_size check_image_mirror
        check_green_background check_file_exists_and_structure_sim check_triangle_position
        check_textbox_on_leftside""",
    "tree": "check_accessibility_tree check_left_panel",
    "archives": "compare_archive compare_zip_files compare_epub check_mp3_meta",
}
METRICS: dict[str, str] = {
    name: f"guiderail.tasks.judges.{module}:{name}" for module, names in _MODULES.items() for name in names.split()
}
"""Metric -> "module:function"."""

SETUP = frozenset(
    """download upload_file launch execute command execute_with_verification open activate_window close_window
    change_wallpaper sleep""".split()
)
"""Setup steps that are implemented."""


def missing(task: OsworldTask) -> list[str]:
    """What of `task` is not implemented: "func x", "getter y", "step z", without repeats. Empty = covered."""
    found: dict[str, None] = {}
    for check in task.checks:
        if check.func != "infeasible" and check.func not in METRICS:
            found[f"func {check.func}"] = None
        for getter in (check.result, check.expected):
            if getter is not None and getter["type"] not in FETCHERS:
                found[f"getter {getter['type']}"] = None
    for step in task.steps:
        if step.type not in SETUP:
            found[f"step {step.type}"] = None
    return list(found)
