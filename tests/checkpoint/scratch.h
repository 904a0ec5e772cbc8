#pragma once
// Folders, files and expected errors of tests.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

#include "support/temporary_folder.h"

namespace tutti::test {

inline void write_content(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

/// Expects that `action` throws an E whose message contains all of `parts`.
template <typename E, typename Action>
void expect_error(const Action& action, std::initializer_list<std::string> parts) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const E& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "no '" << part << "' in: " << error.what();
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error was thrown: " << error.what();
  }
}

}  // namespace tutti::test
