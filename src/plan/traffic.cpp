#include "plan/traffic.h"

#include <bit>

namespace tutti::plan {
namespace {

/// Up to this number of members, a small all-gather sends directly to all members.
constexpr int max_direct_members = 8;

int log2_rounded_up(int number) {
  return std::bit_width(static_cast<unsigned>(number) - 1);
}

}  // namespace

Schedule schedule_for(int members, double bytes) {
  constexpr int most_connections = 64;
  constexpr double message_us = 20;
  constexpr double latency_us = 50;
  if (members <= max_direct_members) return Schedule::direct;
  if (members > most_connections) return Schedule::halving;
  const double halving_us = 2.0 * log2_rounded_up(members) * (message_us + latency_us) + halving_additions_us(bytes);
  return halving_us < 2.0 * (members - 1) * message_us ? Schedule::halving : Schedule::direct;
}

double halving_additions_us(double bytes) {
  constexpr double byte_us = 0.0002;
  return byte_us * bytes;
}

Messages messages_of(Schedule schedule, int members) {
  if (members < 2) return {};
  const double share = static_cast<double>(members - 1) / members;
  if (schedule == Schedule::direct) return {.steps = 1, .sent = members - 1, .share = share};
  const int steps = log2_rounded_up(members);
  return {.steps = steps, .sent = steps, .share = share};
}

int exchange_steps(int members) {
  if (members < 2) return 0;
  return members <= max_direct_members ? 1 : log2_rounded_up(members);
}

BackendChoice backend_for(const Layout& layout) {
  if (layout.ranks() < 2) return BackendChoice::none;
  if (layout.nodes == 1) return BackendChoice::shared_memory;
  const bool power_of_two = std::has_single_bit(static_cast<unsigned>(layout.ranks_per_node));
  return layout.ranks_per_node > 1 && power_of_two ? BackendChoice::hierarchical : BackendChoice::messages;
}

}  // namespace tutti::plan
