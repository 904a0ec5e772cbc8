#pragma once
// Progress of a run: one line that is redrawn on a terminal, or plain lines at intervals elsewhere.
#include <chrono>
#include <cstdint>
#include <string>

namespace gpt {

class Progress {
 public:
  /// Prints only if `visible`, which is true on one rank.
  Progress(std::int64_t total, bool visible);
  /// Erases an unfinished line.
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Reports `done` steps, at least 1, of the total. Prints at intervals and after the last step.
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
