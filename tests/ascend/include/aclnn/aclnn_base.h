/* aclnn_base.h - what every aclnn operator's header includes. */
#ifndef STAND_ACLNN_BASE_H
#define STAND_ACLNN_BASE_H

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

aclnnStatus aclnnInit(const char *configPath);
aclnnStatus aclnnFinalize(void);

#ifdef __cplusplus
}
#endif
#endif
