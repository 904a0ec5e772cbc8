# Sphinx's configuration for the site; tools/docs.sh runs Sphinx.
project = "tutti"
html_title = "tutti"
extensions = ["myst_parser"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["tutti.css"]
templates_path = []
html_favicon = "static/favicon.svg"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_use_index = True
# A page that was opened as a file may not load other files for a summary.
html_show_search_summary = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "xcode"
pygments_dark_style = "github-dark"
highlight_language = "text"
primary_domain = "cpp"
cpp_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
add_module_names = False
# Headings get the same anchors as on code forges.
myst_heading_anchors = 6
# Output of programs, and sketches of code, need not be C++; default arguments may be more than Sphinx can parse.
suppress_warnings = ["misc.highlighting_failure", "myst.header", "source_code_parser.cpp"]
