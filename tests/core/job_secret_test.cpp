// Ranks: none.
#include "core/job_secret.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "support/temporary_folder.h"
#include "tutti/core/error.h"

namespace tutti::test::job_secret_test {
namespace {

namespace fs = std::filesystem;

JobSecretPtr read(const std::map<std::string, std::string>& variables) {
  return read_job_secret([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

void expect_refusal(const std::map<std::string, std::string>& variables, const std::string& part) {
  try {
    read(variables);
    ADD_FAILURE() << "accepted; expected the error: " << part;
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find("hush"), std::string::npos) << error.what();
  }
}

TEST(Encryption, IsAskedForByOneOrTrue) {
  const auto read_value = [](const std::optional<std::string>& value) {
    return read_encryption([&](const std::string&) { return value; });
  };
  for (const std::string yes : {"1", "true"}) EXPECT_TRUE(read_value(yes));
  for (const std::string no : {"0", "false", ""}) EXPECT_FALSE(read_value(no));
  EXPECT_FALSE(read_value(std::nullopt));
  for (const std::string wrong : {"yes", "2", "TRUE ", "on"}) EXPECT_THROW(read_value(wrong), UsageError);
}

class SecretFile : public testing::Test {
 protected:
  std::string write(const std::string& content, fs::perms permissions = fs::perms::owner_read) {
    const auto path = folder_.path() / "secret";
    fs::remove(path);
    std::ofstream(path) << content;
    fs::permissions(path, permissions);
    return path;
  }
  TemporaryFolder folder_;
};

TEST(JobSecret, IsNullIfNeitherVariableIsSet) {
  EXPECT_EQ(read({}), nullptr);
}

TEST(JobSecret, IsReadFromAVariable) {
  const auto secret = read({{"TUTTI_JOB_SECRET", " hush hush hush hush\n"}});
  EXPECT_EQ(secret->text(), "hush hush hush hush");
  EXPECT_EQ(secret->source(), "TUTTI_JOB_SECRET");
  EXPECT_EQ(secret->bytes().size(), secret->text().size());
}

TEST(JobSecret, IsRefusedIfItIsTooShortOrTooLong) {
  expect_refusal({{"TUTTI_JOB_SECRET", ""}}, "has 0 characters");
  expect_refusal({{"TUTTI_JOB_SECRET", "hush hush      \n\n\n"}}, "has 9 characters");
  expect_refusal({{"TUTTI_JOB_SECRET", std::string(5000, 'x')}}, "more than 4096");
}

TEST_F(SecretFile, IsRead) {
  const auto path = write("hush hush hush hush\n");
  const auto secret = read({{"TUTTI_JOB_SECRET_FILE", path}});
  EXPECT_EQ(secret->text(), "hush hush hush hush");
  EXPECT_EQ(secret->source(), path);
  // The permissions that Kubernetes gives a secret for the group of a pod.
  EXPECT_NE(read({{"TUTTI_JOB_SECRET_FILE", write(secret->text(), fs::perms::owner_read | fs::perms::group_read)}}),
            nullptr);
}

TEST_F(SecretFile, IsRefusedIfOtherUsersMayReadOrWriteIt) {
  for (const auto others : {fs::perms::others_read, fs::perms::others_write}) {
    expect_refusal({{"TUTTI_JOB_SECRET_FILE", write("hush hush hush hush", fs::perms::owner_all | others)}},
                   "by every user of this machine: chmod 600");
  }
}

TEST_F(SecretFile, InvalidFilesAreRefused) {
  expect_refusal({{"TUTTI_JOB_SECRET_FILE", ""}}, "cannot be read");
  expect_refusal({{"TUTTI_JOB_SECRET_FILE", folder_.path() / "nowhere"}}, "No such file");
  expect_refusal({{"TUTTI_JOB_SECRET_FILE", folder_.path()}}, "is not a regular file");
  expect_refusal({{"TUTTI_JOB_SECRET_FILE", "/dev/zero"}}, "is not a regular file");
  expect_refusal({{"TUTTI_JOB_SECRET_FILE", write("hush")}}, "has 4 characters");
  expect_refusal({{"TUTTI_JOB_SECRET_FILE", write(std::string(100'000, 'x'))}}, "more than 4096");
  expect_refusal({{"TUTTI_JOB_SECRET_FILE", write("hush hush hush hush")}, {"TUTTI_JOB_SECRET", "hush hush hush hush"}},
                 "are both set");
}

TEST(JobSecret, EveryCreatedSecretIsDifferent) {
  const auto one = make_job_secret();
  EXPECT_EQ(one->text().size(), 64U);
  EXPECT_NE(one->text(), make_job_secret()->text());
}

}  // namespace
}  // namespace tutti::test::job_secret_test
