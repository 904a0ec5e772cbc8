#include "comm/transport/gloo/channel_ids.h"

#include "comm/transport/gloo/tag_layout.h"

namespace tutti::comm {

ChannelIdPool::ChannelIdPool() {
  for (int number = 0; number < control_channel; ++number) free_.push_back(number);
}

std::optional<ChannelId> ChannelIdPool::acquire() {
  if (free_.empty()) return std::nullopt;
  const ChannelId id{.number = free_.front(), .generation = ++generation_};
  free_.pop_front();
  return id;
}

}  // namespace tutti::comm
