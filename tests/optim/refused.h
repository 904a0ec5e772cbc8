#pragma once
// Tests that an optimizer refuses a state.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tutti/core/error.h"

namespace tutti::test {

/// Fails the test unless `action` throws an E whose message contains `part`.
template <typename E = CheckpointError>
void expect_refused(const std::function<void()>& action, const std::string& part) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown; expected '" << part << "'";
  } catch (const E& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

}  // namespace tutti::test
