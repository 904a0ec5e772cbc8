#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/mail/mail.h"
#include "comm/standstill/watch.h"
#include "flight/recorder.h"

namespace tutti::comm {

/// What a channel shares with those that are made from it. Each may be null.
struct ChannelParts {
  std::shared_ptr<flight::Recorder> recorder{};   ///< writes down operations
  std::shared_ptr<Mail> mail{};                   ///< messages from rank to rank
  std::shared_ptr<StandstillWatch> standstill{};  ///< finds calls that were made on some ranks only; wants mail

  /// For a group of `members` called `name`.
  ChannelParts of(const std::vector<int>& members, const std::string& name) const {
    return {.recorder = recorder, .mail = mail ? mail->of(members, name) : nullptr, .standstill = standstill};
  }
};

}  // namespace tutti::comm
