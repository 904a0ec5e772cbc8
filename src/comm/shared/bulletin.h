#pragma once
#include <memory>

#include "comm/shared/node.h"

namespace tutti::comm {

/// The failures of a channel, in its own memory: word of them can be had for as long as somebody maps it, whoever has
/// ended meanwhile. A rank leaves its word once, before it closes the channel.
std::shared_ptr<Bulletin> make_shared_bulletin(std::shared_ptr<SharedNode> node);

}  // namespace tutti::comm
