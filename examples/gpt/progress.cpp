#include "progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string_view>

namespace gpt {
namespace {

constexpr std::int64_t bar_width = 20;
constexpr std::chrono::milliseconds redraw_interval(100);
constexpr std::chrono::seconds line_interval(10);

bool stdout_is_terminal() {
  const char* kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

std::string bar(std::int64_t done, std::int64_t total) {
  const auto full = static_cast<std::size_t>(bar_width * done / total);
  return '[' + std::string(full, '=') + std::string(bar_width - full, ' ') + ']';
}

}  // namespace

Progress::Progress(std::int64_t total, bool visible)
    : total_(total), visible_(visible), terminal_(stdout_is_terminal()) {}

void Progress::show(std::int64_t done, const std::string& details) {
  if (!visible_ || (Clock::now() < next_ && done < total_)) return;
  next_ = Clock::now() + (terminal_ ? Clock::duration(redraw_interval) : Clock::duration(line_interval));
  const auto seconds_left = seconds() * static_cast<double>(total_ - done) / static_cast<double>(done);
  const auto line = "step " + std::to_string(done) + '/' + std::to_string(total_) + "  " + details + "  " +
                    std::to_string(std::lround(seconds_left)) + " s left";
  if (!terminal_) {
    std::cout << line << std::endl;
    return;
  }
  clear();
  std::cout << bar(done, total_) << ' ' << line << std::flush;
  drawn_ = done < total_;
  if (!drawn_) std::cout << std::endl;
}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void Progress::clear() {
  if (drawn_) std::cout << "\r\033[K" << std::flush;
  drawn_ = false;
}

}  // namespace gpt
