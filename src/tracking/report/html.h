#pragma once
// Formats numbers and marks for the page.
#include <cstdint>
#include <string>

namespace tutti {

/// Escapes text for HTML and SVG, also for attribute values. Control characters, which XML forbids, become U+FFFD.
std::string escape(const std::string& text);

/// At most `digits` significant digits, with a true minus sign: "0.00123", "1.5e−7", "−3", "NaN", "∞".
std::string format_number(double value, int digits = 4);
/// "12,345".
std::string format_count(std::int64_t value);
/// "48 s", "12 min 03 s", "3 h 05 min", "2 d 04 h".
std::string format_wall_time(double seconds);
/// "2026-11-21 10:12 UTC" from seconds since 1970.
std::string format_date(double time);
/// A position in an SVG, to a tenth of a unit.
std::string px(double value);
/// A text in an SVG at (x, y). `text` is escaped already.
std::string svg_text(const char* css, double x, double y, const std::string& text);

/// The CSS class with the run's colour.
std::string run_class(std::size_t run);
/// The mark of the run, centred at (x, y). Its shape identifies the run without colour.
std::string run_mark(std::size_t run, double x, double y);
/// The mark as a small picture for legends and tables.
std::string run_swatch(std::size_t run);

}  // namespace tutti
