#pragma once
// What an error says.
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace tutti::test {

/// The text of the Error that `action` throws.
template <typename Error>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "it was not refused";
}

inline void expect_says(const std::string& message, const std::string& words) {
  EXPECT_NE(message.find(words), std::string::npos) << message;
}

}  // namespace tutti::test
