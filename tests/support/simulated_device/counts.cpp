#include <array>
#include <mutex>

#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {
namespace {

struct SharedCounts {
  std::mutex mutex;
  Counts counts;
  std::array<std::atomic<bool>, most_devices> touched{};
};

SharedCounts& shared() {
  static auto* const all = new SharedCounts;  // never deleted: the streams' threads use it until the process ends
  return *all;
}

}  // namespace

Settings& settings() {
  static auto* const all = new Settings;
  return *all;
}

std::int64_t Counts::all_waits() const {
  std::int64_t sum = 0;
  for (const auto& [reason, number] : waits) sum += number;
  return sum;
}

Counts counts() {
  const std::lock_guard lock(shared().mutex);
  return shared().counts;
}

void reset_counts() {
  const std::lock_guard lock(shared().mutex);
  shared().counts = {};
}

void count_wait(const std::string& reason) {
  const std::lock_guard lock(shared().mutex);
  ++shared().counts.waits[reason];
}

void count(std::int64_t Counts::*number) {
  const std::lock_guard lock(shared().mutex);
  ++(shared().counts.*number);
}

bool touched(int device) {
  return shared().touched.at(static_cast<std::size_t>(device));
}

void forget_touched() {
  for (auto& device : shared().touched) device = false;
}

void touch(int device) {
  shared().touched.at(static_cast<std::size_t>(device)) = true;
}

}  // namespace tutti::test::simulated
