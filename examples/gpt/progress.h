#pragma once
// How far a run is: one line that is redrawn on a terminal, elsewhere a plain line now and then.
#include <chrono>
#include <cstdint>
#include <string>

namespace gpt {

class Progress {
 public:
  /// Silent unless `visible`: one of many ranks shows it.
  Progress(std::int64_t total, bool visible);
  /// Removes a line that was not the last.
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` steps, at least one, of the total. Cheap where no line is due; the last step always shows.
  void show(std::int64_t done, const std::string& details);
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  void clear();

  std::int64_t total_;
  bool visible_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_;
};

}  // namespace gpt
