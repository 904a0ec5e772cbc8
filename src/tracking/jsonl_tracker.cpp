#include "tutti/tracking/jsonl_tracker.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tracking/append_file.h"
#include "tracking/unix_time.h"

namespace tutti {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no NaN or infinity: they become the strings of protobuf's JSON mapping.
Json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json value_of(const Hyperparameters::mapped_type& value) {
  if (const auto* real = std::get_if<double>(&value)) return number(*real);
  return std::visit([](const auto& plain) { return Json(plain); }, value);
}

}  // namespace

class JsonlTracker::File {
 public:
  explicit File(std::filesystem::path path) : file_(std::move(path), AppendFile::Open::existing_or_new) {
    // A killed run may have left an incomplete line. The next event must not continue it.
    if (!file_.ends_with_line()) file_.append("\n");
  }

  void write(const Json& event) {
    // The texts come from the user: bytes that are not UTF-8 become U+FFFD.
    file_.append(event.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n');
  }
  void sync() { file_.sync(); }

 private:
  AppendFile file_;
};

JsonlTracker::JsonlTracker(std::filesystem::path path) : file_(std::make_unique<File>(std::move(path))) {}

JsonlTracker::~JsonlTracker() = default;

void JsonlTracker::start(const std::string& run, const Hyperparameters& hyperparameters, std::int64_t step) {
  auto values = Json::object();
  for (const auto& [name, value] : hyperparameters) values[name] = value_of(value);
  file_->write({{"event", "start"}, {"time", unix_time()}, {"run", run}, {"step", step}, {"hyperparameters", values}});
}

void JsonlTracker::log(std::int64_t step, const Scalars& scalars) {
  auto values = Json::object();
  for (const auto& [name, value] : scalars) values[name] = number(value);
  file_->write({{"event", "scalars"}, {"time", unix_time()}, {"step", step}, {"values", values}});
}

void JsonlTracker::log_text(std::int64_t step, const std::string& name, const std::string& text) {
  file_->write({{"event", "text"}, {"time", unix_time()}, {"step", step}, {"name", name}, {"text", text}});
}

void JsonlTracker::flush() {
  file_->sync();
}

}  // namespace tutti
