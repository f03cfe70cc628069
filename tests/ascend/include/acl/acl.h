/* acl.h - AscendCL's entrance, declared for the stand-in. */
#ifndef STAND_ACL_H
#define STAND_ACL_H

#include "acl_base.h"
#include "acl_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* configPath: NULL, or a JSON file, which the stand-in does not read. ACL_ERROR_REPEAT_INITIALIZE
 * the second time in a process. */
aclError aclInit(const char *configPath);
aclError aclFinalize(void);
/* The text of this thread's last error, borrowed until its next call; NULL where none is pending.
 */
const char *aclGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif
#endif
