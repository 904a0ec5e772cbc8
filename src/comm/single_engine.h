#pragma once
// One rank: every collective is the identity.
#include "comm/engine/engine.h"

namespace tutti::comm {

std::shared_ptr<Engine> make_single_engine();

}  // namespace tutti::comm
