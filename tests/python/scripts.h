#pragma once
// Runs the scripts of this folder as ranks of `tutti launch`, with a Python that has PyTorch.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launch/tutti_process.h"

namespace tutti::test {

/// Runs tests/python/`script`, or the absolute path `script`, on `ranks` ranks. The build's python/ is in the import
/// path.
Finished run_script(const std::string& python, const std::string& script, int ranks,
                    const std::vector<std::string>& arguments = {}, const std::vector<std::string>& options = {});

/// A test that needs a Python with PyTorch.
class WithPyTorch : public testing::Test {
 protected:
  void SetUp() override;
  void expect_success(const std::string& script, int ranks, const std::vector<std::string>& arguments = {}) const;

  std::string python_;
};

}  // namespace tutti::test
