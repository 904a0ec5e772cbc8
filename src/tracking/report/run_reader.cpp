#include "tracking/report/run_reader.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <istream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "core/json_depth.h"
#include "tracking/report/html.h"
#include "tracking/step_limit.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using Json = nlohmann::ordered_json;

std::optional<double> number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

std::string shown(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return format_number(value.get<double>(), 8);
  return value.dump();
}

class RunParser {
 public:
  /// Returns false for a line that a JsonlTracker did not write.
  bool take(const std::string& line) {
    constexpr int max_depth = 16;  // a tracker's lines have two levels
    if (is_json_deeper_than(max_depth, line)) return false;
    const auto event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object() || !event.contains("time") || !event["time"].is_number() || !event.contains("step") ||
        !event["step"].is_number_integer()) {
      return false;
    }
    const auto step = event["step"].get<std::int64_t>();  // negative if an unsigned number is too large
    if (step < 0 || step > largest_step) return false;
    const auto kind = event.value("event", Json());
    const auto time = event["time"].get<double>();
    const bool is_ours = kind == "start"     ? start(event, step, time)
                         : kind == "scalars" ? scalars(event, step)
                         : kind == "text"    ? text(event, step)
                                             : false;
    if (!is_ours) return false;
    if (run_.session_steps.empty()) begin_session(step, time);  // the file has lost its first line
    last_time_ = std::max(last_time_, time);
    return true;
  }

  RunRecord finish(std::size_t unread_lines) {
    close_session();
    run_.unread_lines = unread_lines;
    for (auto& series : run_.series) {
      if (!series.points.empty()) run_.last_step = std::max(run_.last_step, series.points.back().step);
    }
    std::erase_if(run_.series, [](const Series& series) { return series.points.empty(); });
    return std::move(run_);
  }

 private:
  bool start(const Json& event, std::int64_t step, double time) {
    const auto values = event.find("hyperparameters");
    if (values == event.end() || !values->is_object()) return false;
    forget_from(step == 0 ? 0 : step + 1);
    close_session();
    if (step == 0) run_.wall_seconds = 0;
    begin_session(step, time);
    const auto name = event.value("run", Json());
    if (name.is_string()) run_.name = name.get<std::string>();
    run_.hyperparameters.clear();
    for (const auto& [key, value] : values->items()) run_.hyperparameters[key] = shown(value);
    return true;
  }

  bool scalars(const Json& event, std::int64_t step) {
    const auto values = event.find("values");
    if (values == event.end() || !values->is_object()) return false;
    for (const auto& [name, value] : values->items()) {
      if (const auto real = number(value)) add(name, {step, *real});
    }
    return true;
  }

  bool text(const Json& event, std::int64_t step) {
    const auto name = event.value("name", Json());
    const auto body = event.value("text", Json());
    if (!name.is_string() || !body.is_string()) return false;
    run_.texts.push_back({step, name.get<std::string>(), body.get<std::string>()});
    return true;
  }

  void add(const std::string& name, Point point) {
    const auto [found, is_new] = index_.try_emplace(name, run_.series.size());
    if (is_new) run_.series.push_back({name, {}});
    auto& points = run_.series[found->second].points;
    const auto place = std::lower_bound(points.begin(), points.end(), point.step,
                                        [](const Point& other, std::int64_t step) { return other.step < step; });
    if (place != points.end() && place->step == point.step) {
      *place = point;  // logged twice: the later value replaces the earlier one
    } else {
      points.insert(place, point);
    }
  }

  void forget_from(std::int64_t step) {
    const auto is_void = [&](const auto& entry) { return entry.step >= step; };
    for (auto& series : run_.series) run_.void_values += std::erase_if(series.points, is_void);
    run_.void_values += std::erase_if(run_.texts, is_void);
    std::erase_if(run_.session_steps, [&](std::int64_t begin) { return begin >= step; });
  }

  void begin_session(std::int64_t step, double time) {
    if (run_.session_steps.empty()) run_.started = time;
    if (run_.session_steps.empty() || run_.session_steps.back() != step) run_.session_steps.push_back(step);
    session_began_ = last_time_ = time;
  }

  void close_session() { run_.wall_seconds += last_time_ - session_began_; }

  RunRecord run_;
  std::map<std::string, std::size_t> index_;
  double session_began_ = 0;
  double last_time_ = 0;
};

}  // namespace

const Series* RunRecord::find(const std::string& scalar) const {
  const auto found = std::find_if(series.begin(), series.end(), [&](const Series& one) { return one.name == scalar; });
  return found == series.end() ? nullptr : &*found;
}

std::string RunRecord::end_reason() const {
  const auto last =
      std::find_if(texts.rbegin(), texts.rend(), [](const Text& one) { return one.name == end_of_training; });
  // A later start has continued the run.
  const bool is_last = last != texts.rend() && (session_steps.empty() || session_steps.back() <= last->step);
  return is_last && last->step >= last_step ? last->text : "";
}

RunRecord parse_run(std::istream& lines) {
  RunParser parser;
  std::size_t unread = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && !parser.take(line)) ++unread;
  }
  return parser.finish(unread);
}

RunRecord read_run(const std::filesystem::path& path) {
  const auto file = std::filesystem::is_directory(path) ? path / "metrics.jsonl" : path;
  std::error_code error;
  std::ifstream lines;
  if (std::filesystem::is_regular_file(file, error)) lines.open(file);  // a device or pipe may never end
  if (!lines.is_open()) {
    throw UsageError("there is no run in " + path.string() + ": name a .jsonl file, or a folder with metrics.jsonl");
  }
  RunRecord run = parse_run(lines);
  if (run.session_steps.empty()) {
    throw UsageError("no line of " + file.string() + " is an event of a run: name a file that a JsonlTracker wrote");
  }
  if (run.name.empty()) run.name = file.stem().string();
  return run;
}

}  // namespace tutti
